"""Operations of several ranks together: sums, columns side by side, the best of all. Knows nothing of how ranks are
connected."""
