// Command proof checks deployment files by the very libraries that read them in earnest.
//
//	proof compose FILE       the compose file against the compose specification, merged and normalised
//	proof kustomize FOLDER   builds the folder, decodes each object strictly (unknown fields are errors)
//	                         and prints what was built
//	proof dockerfile FILE    each instruction, read by the parser of the engine that builds it
//
// It contacts nothing. Exit code 1: the problem is on stderr.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: proof compose FILE | proof kustomize FOLDER | proof dockerfile FILE"))
	}
	var text []byte
	var err error
	switch os.Args[1] {
	case "compose":
		text, err = compose(os.Args[2])
	case "kustomize":
		text, err = kustomize(os.Args[2])
	case "dockerfile":
		text, err = dockerfile(os.Args[2])
	default:
		err = fmt.Errorf("no such check: %s", os.Args[1])
	}
	if err != nil {
		fail(err)
	}
	_, _ = os.Stdout.Write(text)
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func compose(file string) ([]byte, error) {
	options, err := cli.NewProjectOptions([]string{file}, cli.WithName("looptap"), cli.WithProfiles([]string{"*"}))
	if err != nil {
		return nil, err
	}
	project, err := options.LoadProject(context.Background())
	if err != nil {
		return nil, err
	}
	return project.MarshalJSON()
}

func kustomize(folder string) ([]byte, error) {
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	if err != nil {
		return nil, err
	}
	decoder := serializer.NewCodecFactory(clientscheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	for _, resource := range built.Resources() {
		text, err := resource.AsYAML()
		if err != nil {
			return nil, err
		}
		if _, _, err := decoder.Decode(text, nil, nil); err != nil && !runtime.IsNotRegisteredError(err) {
			return nil, fmt.Errorf("%s: %w", resource.CurId(), err)
		} else if err != nil {
			return nil, fmt.Errorf("%s: a kind that a bare cluster does not have: %w", resource.CurId(), err)
		}
	}
	return built.AsYaml()
}

func dockerfile(file string) ([]byte, error) {
	source, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	parsed, err := parser.Parse(source)
	if err != nil {
		return nil, err
	}
	stages, _, err := instructions.Parse(parsed.AST, nil)
	if err != nil {
		return nil, err
	}
	for _, warning := range parsed.Warnings {
		return nil, fmt.Errorf("%s: %s", file, warning.Short)
	}
	var told []byte
	for _, stage := range stages {
		told = fmt.Appendf(told, "FROM %s %d\n", stage.BaseName, len(stage.Commands))
	}
	return told, nil
}
