"""What stands behind `Runtime`: finding a tool, speaking for a principal, following an edit."""
