"""What each technique is worth: a ladder of variants of one configuration, measured in turns."""
