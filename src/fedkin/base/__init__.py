"""What everything else stands on: random streams, named tensors, rows of weights, tasks, files and words."""
