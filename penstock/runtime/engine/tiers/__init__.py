"""KV blocks that outlive the device: host memory, then a disk. Every record is verified before it is used.

Nothing here knows tensors: a runner reads and writes blocks as bytes, one record a block.
"""
