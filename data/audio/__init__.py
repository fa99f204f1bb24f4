"""Recordings: folders of files with classes or transcripts, as waveforms or features."""
