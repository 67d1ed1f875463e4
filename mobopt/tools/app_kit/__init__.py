"""App kits: what is shipped beside a phone file. ``kit.py`` makes the folder, each other module a part of it."""
