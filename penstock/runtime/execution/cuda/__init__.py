"""Steps on an NVIDIA GPU: recorded graphs, rows on the device, no host wait between steps."""
