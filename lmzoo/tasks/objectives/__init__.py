"""What several tasks learn: masked, replaced and next tokens."""
