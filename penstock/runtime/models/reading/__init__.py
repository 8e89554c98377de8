"""From settings in files to parts of a spec. Files are not believed."""
