"""What people look at: figures, and later tables and pages."""
