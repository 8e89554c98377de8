"""One model on one machine: from frozen weights to tokens. Imports nothing of service or tools."""
