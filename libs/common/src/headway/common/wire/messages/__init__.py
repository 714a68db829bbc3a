"""Every message of Headway, one module per receiver; import the module, never ``*``."""
