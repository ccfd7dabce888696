"""Records of any number of partitions as one endless answer that resumes."""
