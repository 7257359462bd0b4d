"""The app itself: its processes, its cgroup, its requests in flight and its connection pools."""
