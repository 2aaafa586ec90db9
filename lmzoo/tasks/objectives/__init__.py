"""What several tasks learn: masked and replaced tokens."""
