"""The user's own training, as every package sees it: its spec, placeholders, code and output."""
