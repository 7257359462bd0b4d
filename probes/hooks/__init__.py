"""What the hooks inside the app's processes tell."""
