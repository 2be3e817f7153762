import react from '@vitejs/plugin-react'
import { defineConfig } from 'vite'

// The client is linked from this repository. Without `dedupe`, its hooks would load a second React.
export default defineConfig({ plugins: [react()], resolve: { dedupe: ['react', 'react-dom'] } })
