// The body of a request in Swagger UI: a form of its values, and a switch to the box with JSON.

import { schemaForm } from "./schema_form.js";

const JSON_TYPE = "application/json";
const FORM_TYPE = "multipart/form-data";

/**
 * Return the plugin of Swagger UI's.
 *
 * @param spec the OpenAPI document
 */
export function bodyForms(spec) {
  const checks = new Map(); // what says whether the form on show can be sent, by path and method

  /** Return the form of a body, which begins with the example; null if it has none. */
  function formOf(path, method, type) {
    const content = spec.paths[path]?.[method]?.requestBody?.content ?? {};
    const schema = type === JSON_TYPE || type === FORM_TYPE ? content[type]?.schema : undefined;
    const form = schemaForm(schema, schema?.title ?? "Value", spec);
    const example = content[type]?.example ?? content[JSON_TYPE]?.example;
    if (form && example !== undefined) form.fill(example);
    return form;
  }

  return ({ React }) => {
    const element = React.createElement;

    class BodyForm extends React.Component {
      state = { isForm: true, isJsonWrong: false };
      host = React.createRef();
      sent = undefined; // the last body that Swagger UI got from the form

      componentDidMount() {
        const { form, name } = this.props;
        checks.set(name, () => !this.state.isForm || form.check());
        form.element.addEventListener("change", this.send); // not with each letter: Swagger UI renders all models anew
        this.host.current.append(form.element);
        this.send();
      }

      componentWillUnmount() {
        const { form, name } = this.props;
        checks.delete(name);
        form.element.removeEventListener("change", this.send);
      }

      /** Follow Swagger UI's buttons, which put another body in the place of the form's. */
      componentDidUpdate(before) {
        const body = this.props.given.requestBodyValue;
        if (!this.state.isForm || body === before.given.requestBodyValue || body === this.sent) return;
        if (body && !this.props.isMultipart) this.setState({ isForm: this.fill(body) });
        else if (!body?.size) this.send();
      }

      send = () => {
        const { form, given, isMultipart } = this.props;
        const value = form.value();
        if (isMultipart) {
          for (const name of Object.keys(this.props.members)) given.onChange(asField(value[name]), [name]);
        } else {
          this.sent = value === undefined ? "" : JSON.stringify(value, null, 2);
          given.onChange(this.sent);
        }
      };

      /** Take over what is JSON; return whether the form has fields for all of it. */
      fill(text) {
        try {
          if (!this.props.form.fill(JSON.parse(text))) return false;
          this.send();
          return true;
        } catch {
          return false;
        }
      }

      toggle = () => {
        const { isForm } = this.state;
        if (isForm) this.setState({ isForm: false, isJsonWrong: false });
        else {
          const isWhole = this.fill(this.props.given.requestBodyValue ?? "");
          this.setState({ isForm: isWhole, isJsonWrong: !isWhole });
        }
      };

      render() {
        const { Original, given, isMultipart } = this.props;
        const { isForm, isJsonWrong } = this.state;
        const label = element("label", { className: "as-json" }, element("input", { type: "checkbox", checked: !isForm, onChange: this.toggle }), " as JSON");
        return element(
          "div",
          { className: "body-form" },
          isMultipart ? null : label,
          isJsonWrong ? element("p", { role: "alert", className: "wrong" }, "This is not JSON, or the form has no field for some of it.") : null,
          element("div", { ref: this.host, hidden: !isForm }),
          isForm ? null : element(Original, given),
        );
      }
    }

    /** The body as Swagger UI has it, or a form. */
    function Body({ Original, given }) {
      const [, path, method] = given.specPath.toArray();
      const type = given.contentType || given.requestBody?.get("content")?.keySeq().first();
      const form = React.useMemo(() => formOf(path, method, type), [path, method, type]);
      if (!form || !given.isExecute) return element(Original, given);
      const name = `${method} ${path}`;
      const isMultipart = type === FORM_TYPE;
      const members = isMultipart ? spec.paths[path][method].requestBody.content[type].schema.properties : {};
      return element(BodyForm, { key: type, Original, given, form, name, isMultipart, members });
    }

    return {
      wrapComponents: {
        RequestBody: (Original) => (given) => element(Body, { Original, given }),
        /** The button sends nothing as long as the form says that something is wrong. */
        execute: (Original) => (given) => {
          const guard = (event) => (checks.get(`${given.method} ${given.path}`)?.() ?? true) || event.stopPropagation();
          return element("div", { className: "guarded", onClickCapture: guard }, element(Original, given));
        },
      },
    };
  };
}

/** Return what Swagger UI makes a field of a form of: a file, or JSON, which it decodes. */
function asField(value) {
  return value === undefined || value instanceof Blob ? value : JSON.stringify(value);
}
