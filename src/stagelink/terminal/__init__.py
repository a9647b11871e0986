"""Commands that look and show; each module is one command, registered in stagelink.commands."""
