"""What people read of a bench: Markdown for a terminal or a file, and a page with plots."""
