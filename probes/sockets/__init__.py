"""The app's own TCP connections, as the kernel of this network namespace sees them."""
