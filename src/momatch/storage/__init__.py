"""Files on disk: durable writes, tensors, run directories, records. The bottom layer; importing it does not import torch."""
