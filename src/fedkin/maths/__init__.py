"""What the papers write: attention, collaboration, hypernetworks, theorems, statistics."""
