"""From scores to what may be said."""
