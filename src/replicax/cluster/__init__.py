"""Who is in the cluster: its description, the roles of its tasks, the resolvers that find it."""
