import { defineConfig } from "vite";

// One script and one style sheet, nothing inline: the content security policy of the page forbids everything else.
export default defineConfig({
  base: "/dashboard/files/",
  build: {
    outDir: "../src/toolway/gateway/pages",
    emptyOutDir: true,
    assetsDir: "",
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    rollupOptions: { output: { entryFileNames: "app-[hash].js", assetFileNames: "app-[hash][extname]" } },
  },
  server: { proxy: { "/admin": "http://127.0.0.1:8765", "/dashboard/session": "http://127.0.0.1:8765" } },
});
