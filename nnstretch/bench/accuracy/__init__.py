"""The accuracy study: networks, images, designs and tables. `cli.job.accuracy_study` runs its trainings."""
