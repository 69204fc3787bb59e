"""The commands, one file for each group. They read options, call the layers below and print; they compute nothing."""
