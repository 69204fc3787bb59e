"""Bytes between a store and this machine, through the one S3-compatible client. It knows no dataset."""
