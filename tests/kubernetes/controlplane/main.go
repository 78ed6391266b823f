// SPDX-License-Identifier: MIT OR Apache-2.0

// The control plane of Kubernetes as one program, for tests: the first word says which part runs, the rest are its flags.
// Kubernetes is published as source only where this project's tests may come from, and `go install` does not take it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
)

func main() {
	parts := map[string]func() *cobra.Command{
		"kube-apiserver":          apiserver.NewAPIServerCommand,
		"kube-controller-manager": controllers.NewControllerManagerCommand,
		"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	}
	if len(os.Args) > 1 {
		if part, known := parts[os.Args[1]]; known {
			os.Args = os.Args[1:]
			os.Exit(cli.Run(part()))
		}
	}
	name := filepath.Base(os.Args[0])
	fmt.Fprintf(os.Stderr, "usage: %s kube-apiserver|kube-controller-manager|kube-scheduler [flags]\n", name)
	os.Exit(2)
}
