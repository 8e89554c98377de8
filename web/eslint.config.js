import tseslint from "typescript-eslint";

export default tseslint.config(
  ...tseslint.configs.strict,
  ...tseslint.configs.stylistic,
  {
    files: ["src/**/*.{ts,tsx}"],
    rules: {
      "@typescript-eslint/no-non-null-assertion": "off",
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Text is shown as text; nothing is parsed as HTML." },
        { selector: "MemberExpression[property.name='innerHTML']", message: "Text is shown as text; nothing is parsed as HTML." },
      ],
      "no-console": "error",
      eqeqeq: "error",
    },
  },
);
