//go:build floored

package main

// At the start it rounds the CPU limit down to whole CPUs and sets GOMAXPROCS, as it does in many services.
import _ "go.uber.org/automaxprocs"
