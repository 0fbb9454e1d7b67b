// Command pause holds a pod's namespaces: it sleeps until it is told to stop.
// Ignoring SIGCHLD makes the kernel reap the zombies of pods that share their
// process namespace.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	signal.Ignore(syscall.SIGCHLD)
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	<-stop
}
