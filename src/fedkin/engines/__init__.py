"""What carries messages between server and clients."""
