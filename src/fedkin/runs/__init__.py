"""One run on disk: its configuration, its folder, its models."""
