"""What one run is made of."""
