import { render } from 'preact'
import { App } from './app.tsx'
import { Session } from './session/session.ts'
import './styles/base.css'
import './styles/layout.css'
import './styles/parts.css'

const session = new Session()
const root = document.getElementById('app')
if (root) render(<App session={session} />, root)
void session.start()
