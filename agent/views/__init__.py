"""What several rules derive from readings."""
