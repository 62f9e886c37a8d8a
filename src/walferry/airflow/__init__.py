"""The entry point of the provider."""
