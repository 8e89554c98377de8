"""Operations of several ranks together: sums, columns side by side, the best of all. Who the others are is not known here."""
