"""The calls that talk to the database, written once; ``akadze._sync`` is generated from these files."""
