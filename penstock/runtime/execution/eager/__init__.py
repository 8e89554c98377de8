"""Steps through torch on any device: rows, inputs, forward, sampling. The definition the fast runners are held to."""
