import type { Theme } from 'vitepress'
import DefaultTheme from 'vitepress/theme'
import { h } from 'vue'
import { watchPictures } from './pictures.ts'
import './contrast.css'

const notFound = () =>
  h('main', { class: 'vp-doc not-found' }, [h('h1', 'No such page'), h('a', { href: '/' }, 'To the first page')])

export default {
  extends: DefaultTheme,
  Layout: () => h(DefaultTheme.Layout, null, { 'not-found': notFound }),
  setup: watchPictures,
} satisfies Theme
