"""Records -> what people read: tables, boards and the verdict."""
