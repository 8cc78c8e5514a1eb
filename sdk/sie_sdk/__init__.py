"""The SDK: clients, wire types, the error tree and the `sie` command line."""
