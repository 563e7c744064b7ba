"""What a synthetic set is worth to its users."""
