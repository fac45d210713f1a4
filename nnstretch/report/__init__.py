"""What people look at: tables for terminals, a timeline as a picture, and one HTML file with everything."""
