"""The public schema: facts about columns that are known without reading records."""
