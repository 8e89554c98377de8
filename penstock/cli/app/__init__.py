"""What the web app's tools run in processes of their own. Not for people: `server/ui` starts it and reads its lines."""
