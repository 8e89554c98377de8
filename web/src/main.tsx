import { render } from "preact";
import "./styles/base.css";
import "./styles/kit.css";
import "./styles/pages.css";
import { App } from "./app";
import { readColours } from "./theme";

render(<App />, document.getElementById("app")!);
readColours();
