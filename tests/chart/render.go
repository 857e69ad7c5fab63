// Renders a Helm chart without Helm: Go's templates, sprig's functions, and those of Helm's own that the chart uses.
// Arguments: the chart's folder, a file of values (YAML). Prints the manifests.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func read(path string) map[string]interface{} {
	content, err := os.ReadFile(path)
	check(err)
	values := map[string]interface{}{}
	check(yaml.Unmarshal(content, &values))
	return values
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// merged returns the defaults with the values of the second map in their place, map by map.
func merged(defaults, values map[string]interface{}) map[string]interface{} {
	for key, value := range values {
		inner, isMap := value.(map[string]interface{})
		outer, wasMap := defaults[key].(map[string]interface{})
		if isMap && wasMap {
			defaults[key] = merged(outer, inner)
		} else {
			defaults[key] = value
		}
	}
	return defaults
}

func main() {
	folder, values := os.Args[1], merged(read(filepath.Join(os.Args[1], "values.yaml")), read(os.Args[2]))
	chart := read(filepath.Join(folder, "Chart.yaml"))
	all := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var text strings.Builder
		err := all.ExecuteTemplate(&text, name, data)
		return text.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(folder, "templates", "*"))
	check(err)
	base := chart["name"].(string) + "/templates"
	for _, path := range paths {
		content, err := os.ReadFile(path)
		check(err)
		_, err = all.New(base + "/" + filepath.Base(path)).Parse(string(content))
		check(err)
	}
	data := map[string]interface{}{
		"Values":   values,
		"Chart":    map[string]interface{}{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
		"Release":  map[string]interface{}{"Name": "demo", "Namespace": "default", "Service": "Helm"},
		"Template": map[string]interface{}{"BasePath": base},
	}
	for _, path := range paths {
		if strings.HasSuffix(path, ".yaml") {
			fmt.Println("---")
			check(all.ExecuteTemplate(os.Stdout, base+"/"+filepath.Base(path), data))
		}
	}
}
