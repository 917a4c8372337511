"""What people look at: a page, tables, figures, and where runs are logged."""
