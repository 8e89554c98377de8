import { defineConfig } from "vite";

// Built into the Python package, which serves it at `/`. Nothing is inlined: the page's policy allows no inline script or style.
export default defineConfig({
  base: "/",
  build: {
    outDir: "../penstock/service/server/ui/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: "es2022",
  },
  server: { proxy: { "/app/v1": "http://127.0.0.1:8000", "/v1": "http://127.0.0.1:8000", "/tokenize": "http://127.0.0.1:8000" } },
});
